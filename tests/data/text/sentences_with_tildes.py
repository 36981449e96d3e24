"""Sentences, made up for this, of languages whose own letters begin the mojibake of others: Ã, Â, á and the like."""

PORTUGUESE = """Amanhã é domingo, e a minha irmã não vem.
Atenção: alta tensão!
O avô comprou maçãs, limões e um pão de manhã.
As crianças já estão na estação de São João.
A televisão e o rádio não funcionam.
A manhã está fria; a lã é quente.
Você vê o avião? Não, só vejo nuvens.
Ela é alemã, e o irmão dela é espanhol.
O chá de maçã custa três euros.
Os cidadãos pedem informações à administração.
A população da região é pequena."""
VIETNAMESE = """Tôi đã ăn cơm rồi.
Mã số của anh là gì?
Cây cầu này rất cũ.
Âm nhạc làm tôi vui.
Ngã tư đường ở đâu?
Bà ấy là giáo viên dạy toán.
Chúng tôi sống ở Hà Nội.
Xã hội thay đổi nhanh.
Hãy nói chậm lại, tôi chưa hiểu.
Đã lâu không gặp, anh khỏe chứ?
Trời hôm nay rất đẹp."""
TURKISH = """Hâlâ bekliyorum, kâr yok.
İstanbul'da hava çok güzel.
Bu kâğıt kimin?
Öğretmen öğrencilere soru sordu.
Şimdi eve gidiyorum.
Çocuklar bahçede oynuyor.
Rüzgâr kuzeyden esiyor.
Dükkân saat dokuzda açılıyor.
Hikâye çok uzun.
Güneş doğudan doğar.
Yarın İzmir'e gideceğiz."""
